"""How several processes agree on the update after which they end; the rest is in tests/end_to_end."""

import random
import signal

import pytest
from torch.distributed import HashStore

from mae_lm_fairseq.fairseq_patches.preemption import Agreement


def steps_before_the_end(seed: int, processes: int, received: dict[int, tuple[int, signal.Signals]]) -> list[tuple]:
    """Return the number of steps of each process and the signal that ends it, in a random order of their steps.

    No process completes a step that another one has not begun.

    Args:
        received: by process, the step in which it receives a signal, and the signal.
    """
    generator, store = random.Random(seed), HashStore()
    agreements = [Agreement(store) for _ in range(processes)]
    steps, ends = [0] * processes, [None] * processes
    while None in ends:
        process = generator.choice([number for number in range(processes) if ends[number] is None])
        if steps[process] > min(steps):
            continue
        steps[process] += 1
        step, number = received.get(process, (None, None))
        ends[process] = agreements[process].reached(number if step is not None and steps[process] >= step else None)
    return list(zip(steps, ends, strict=True))


@pytest.mark.parametrize("seed", range(50))
def test_all_processes_end_after_the_same_step(seed):
    generator = random.Random(seed)
    processes = generator.randint(2, 5)
    receivers = generator.sample(range(processes), generator.randint(1, processes))
    numbers = [signal.SIGTERM, signal.SIGUSR1]
    received = {process: (generator.randint(5, 7), generator.choice(numbers)) for process in receivers}
    ends = steps_before_the_end(seed, processes, received)
    assert len(set(ends)) == 1
    [(step, number), *_] = ends
    assert step <= min(step for step, _ in received.values()) + 2
    assert number in {number for _, number in received.values()}
