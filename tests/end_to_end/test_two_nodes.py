"""Training on two nodes, which are namespaces of this machine. tests/fault_injection/test_nodes.py lets them fail."""

import re
import sys
from pathlib import Path

import pytest
import torch

from mae_lm_fairseq.fairseq_patches.resuming import saved_updates
from tests.end_to_end.test_pretrain import assert_same_training_state, checkpoint
from tests.end_to_end.test_torchrun import RAGGED, SETTINGS, SPARSE
from tests.fault_injection.training import make_data
from tests.support.comparisons import assert_equal
from tests.support.nodes import TORCHRUN
from tests.support.processes import wait_for

pytestmark = pytest.mark.slow


# test_torchrun.py checks that data and options are such that a rank has no batch for the last update of an epoch,
# that shards have different sizes, and that batches of either rank have no masked token.
@pytest.mark.parametrize(
    ("options", "shards"),
    [(RAGGED, False), (RAGGED, True), (SPARSE, False)],
    ids=["ragged epochs", "ragged shards", "batches without masked tokens"],
)
def test_two_nodes_train_as_one_process_that_accumulates(nodes, fairseq_train, data_bin, tmp_path, options, shards):
    """Bit for bit: both add the gradients of two batches, and divide by a power of two, which is exact."""
    data = make_data(tmp_path / "shards") if shards else data_bin
    arguments = [data, *SETTINGS, *options, "--max-update 20"]
    logs = [tmp_path / "0", tmp_path / "1"]
    program = ["-m", "tests.support.every_rank", *arguments, "--save-dir", tmp_path / "two"]
    started = [node.start(*TORCHRUN, "--nnodes 2", *program, log=log) for node, log in zip(nodes, logs, strict=True)]
    assert [torchrun.wait() for torchrun in started] == [0, 0], logs[0].read_text() + logs[1].read_text()
    assert "initialized host node1 as rank 1" in logs[1].read_text()
    done = fairseq_train(*arguments, "--update-freq 2 --save-dir", tmp_path / "one")
    assert done.returncode == 0, done.stderr
    assert_same_training_state(checkpoint(tmp_path / "two"), checkpoint(tmp_path / "one"))
    first, second = (torch.load(tmp_path / "two" / f"rank-{rank}.pt") for rank in (0, 1))
    assert_equal(first, second)


def test_mae_lm_pretrain_keeps_the_global_batch_while_a_node_is_away(nodes, mae_lm, data_bin, tmp_path):
    """A batch from each of two ranks, two from the one that is left, and again one from each."""
    arguments = ["pretrain", "mae_lm_tiny", data_bin, tmp_path / "elastic", "--cpu --batch-size 16"]
    arguments += ["--log-format simple --log-interval 1 --save-interval-updates 5"]
    arguments += ["--keep-interval-updates 2 --no-epoch-checkpoints --disable-validation --num-workers 0"]
    elastic = ["--nnodes 1:2 --max-restarts 10 --rdzv-conf last_call_timeout=5 --no-python"]
    command = [*TORCHRUN, *elastic, Path(sys.executable).with_name("mae-lm"), *arguments]
    log, last = tmp_path / "log", tmp_path / "elastic/checkpoint_last.pt"

    def global_batches() -> list[str]:
        return re.findall(r"\((.* per batch x .* accumulated x .*)\) x", log.read_text())

    first, second = (node.start(*command, log=log) for node in nodes)
    wait_for(last.exists)
    second.kill()
    wait_for(lambda: len(global_batches()) == 2)
    alone = saved_updates(last)
    wait_for(lambda: saved_updates(last) > alone)
    nodes[1].start(*command, log=log)
    wait_for(lambda: len(global_batches()) == 3)
    again = saved_updates(last)
    wait_for(lambda: saved_updates(last) > again)
    first.kill()
    first.wait()
    of_two_nodes, of_one_node = "16 per batch x 1 accumulated x 2 processes", "16 per batch x 2 accumulated x 1 process"
    assert global_batches() == [of_two_nodes, of_one_node, of_two_nodes]
    arguments[3] = tmp_path / "one"
    done = mae_lm(*arguments, "--max-update", saved_updates(last))
    assert done.returncode == 0, done.stderr
    assert_same_training_state(checkpoint(tmp_path / "elastic"), checkpoint(tmp_path / "one"))
