"""Loading checkpoints without running code, and reporting damage; each test fails without its patch."""

import argparse
import multiprocessing
import os
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils as distributed_utils
from fairseq.models.roberta import RobertaModel

import mae_lm_fairseq
from tests.support.fairseq_commands import SETTINGS, STATE, refusal
from tests.support.finetuning import train_here
from tests.support.pickles import Calls

mae_lm_fairseq.register()

DAMAGED = "it is damaged, or not a checkpoint"


class TestReading:
    @pytest.mark.parametrize(
        "value",
        [argparse.Namespace(lr=0.5), np.float64(0.1), np.float32(0.5), np.float16(2), np.int64(7), np.bool_(True)],
        ids=lambda value: type(value).__name__,
    )
    def test_plain_values(self, tmp_path, value):
        path = str(tmp_path / "checkpoint.pt")
        torch.save({**STATE, "best": value}, path)
        best = checkpoint_utils.load_checkpoint_to_cpu(path)["best"]
        assert best == value
        assert type(best) is type(value)

    @pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
    def test_scalars_of_either_numpy(self, tmp_path, module):
        path = tmp_path / "checkpoint.pt"
        # The older of torch's two file formats is one plain pickle, in which a module name can be replaced.
        torch.save({**STATE, "best": np.float64(0.1)}, path, _use_new_zipfile_serialization=False)
        written = np.float64().__reduce__()[0].__module__.encode()
        assert written in path.read_bytes()
        path.write_bytes(path.read_bytes().replace(written, module))
        assert checkpoint_utils.load_checkpoint_to_cpu(str(path))["best"] == np.float64(0.1)

    @pytest.mark.parametrize("new_format", [True, False])
    @pytest.mark.parametrize("protocol", [2, 4])
    @pytest.mark.parametrize("function", [os.mkdir, Path.mkdir, eval])
    def test_nothing_in_a_checkpoint_runs(self, tmp_path, monkeypatch, function, protocol, new_format):
        path, proof = tmp_path / "checkpoint.pt", tmp_path / "it-ran"
        argument = {os.mkdir: str(proof), Path.mkdir: proof, eval: f"__import__('os').mkdir({str(proof)!r})"}[function]
        options = {"pickle_protocol": protocol, "_use_new_zipfile_serialization": new_format}
        torch.save({**STATE, "best": Calls(function, argument)}, path, **options)
        monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
        message = refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
        assert f"refused {path}: loading it could run code" in message
        assert not proof.exists()
        with pytest.warns(UserWarning, match="weights_only"):
            checkpoint_utils.load_checkpoint_to_cpu.__wrapped__(str(path))
        assert proof.exists()

    def test_file_that_fairseq_mistakes_for_an_older_checkpoint(self, tmp_path):
        path = str(tmp_path / "checkpoint.pt")
        torch.save({name: value for name, value in STATE.items() if name != "optimizer_history"}, path)
        assert "not a checkpoint of fairseq" in refusal(checkpoint_utils.load_checkpoint_to_cpu, path)
        with pytest.raises(KeyError):
            checkpoint_utils.load_checkpoint_to_cpu.__wrapped__(path)

    def test_damaged_file(self, tmp_path):
        whole, path = tmp_path / "whole.pt", tmp_path / "checkpoint.pt"
        torch.save(STATE, whole)
        content, generator = whole.read_bytes(), random.Random(0)
        cuts = [content[:length] for length in (0, 1, 100, len(content) // 2, len(content) - 1)]
        noise = [generator.randbytes(length) for length in (1, 10, 100, 1000)]
        for damaged in (*cuts, *noise, b"\x80\x02" + noise[-1]):
            path.write_bytes(damaged)
            message = refusal(checkpoint_utils.load_checkpoint_to_cpu, str(path))
            assert message == f"cannot read the checkpoint {path}: {DAMAGED}", damaged[:20]

    @pytest.mark.parametrize("content", [{"encoder.weight": torch.zeros(2)}, [1, 2], torch.zeros(2)])
    def test_file_of_something_else(self, tmp_path, content):
        torch.save(content, tmp_path / "pytorch_model.bin")
        assert "not a checkpoint of fairseq" in refusal(
            checkpoint_utils.load_checkpoint_to_cpu, str(tmp_path / "pytorch_model.bin")
        )

    def test_fairseqs_own_model_resumes_and_loads(self, data_bin, tmp_path):
        """Without the patch, torch refuses the file, which holds a configuration."""
        options = [data_bin, *SETTINGS, "--cpu", "--save-dir", tmp_path, "--disable-validation", "--max-update"]
        for updates in (1, 3):
            train_here(*options, updates)
            history = torch.load(tmp_path / "checkpoint_last.pt", weights_only=False)["optimizer_history"]
            assert history[-1]["num_updates"] == updates
        loaded = RobertaModel.from_pretrained(str(tmp_path), "checkpoint_last.pt", str(data_bin), bpe=None)
        assert loaded.extract_features(torch.tensor([0, 5, 6, 2])).shape == (1, 4, 16)

    def test_checkpoint_reaches_the_other_process(self, tmp_path):
        path = str(tmp_path / "checkpoint.pt")
        saved = {**STATE, "cfg": {"model": {"_name": "roberta", "args": argparse.Namespace(layers=3)}}}
        torch.save(saved, path)
        processes = multiprocessing.get_context("fork")
        received = processes.Queue()
        for rank in range(2):
            processes.Process(target=_broadcast, args=(rank, tmp_path / "rendezvous", path, received)).start()
        assert received.get(timeout=60) == {"_name": "roberta", "args": argparse.Namespace(layers=3)}


def _broadcast(rank: int, rendezvous: Path, path: str, received) -> None:
    torch.distributed.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=2)
    state = checkpoint_utils.load_checkpoint_to_cpu(path) if rank == 0 else None
    try:
        state = distributed_utils.broadcast_object(state, src_rank=0, group=torch.distributed.group.WORLD)
        assert torch.equal(state["model"]["weight"], STATE["model"]["weight"])
    finally:
        if rank == 1:
            received.put(state and state["cfg"]["model"])
