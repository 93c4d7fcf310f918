"""Where faults are tried."""

import random
import shutil
from pathlib import Path

from tests.fault_injection.lives import Training


class Workplace:
    """A directory with data, in which trainings of many names can be made.

    Args:
        directory: an empty one, for everything that a fault needs.
        data: what ``lives.make_data`` has made.
        seed: of all that is left to chance.
    """

    def __init__(self, directory: Path, data: str, seed: int = 0):
        self.data, self.random = data, random.Random(seed)
        self.directory, self._number = directory, 0
        self._undisturbed: dict[int, Training] = {}
        directory.mkdir(parents=True, exist_ok=True)

    def training(self, *options: str) -> Training:
        """One that has not begun."""
        self._number += 1
        return Training(self.data, self.directory / f"run-{self._number}", *options)

    def copy(self, training: Training) -> Training:
        """Another one that has come as far."""
        twin = self.training()
        shutil.copytree(training.directory, twin.directory, dirs_exist_ok=True)  # keeps the times
        return twin

    def undisturbed(self, updates: int) -> Training:
        """The one that has come to its end in one life; not to be touched."""
        if updates not in self._undisturbed:
            training = self.training()
            problem = training.finish(updates)
            if problem is not None:
                raise RuntimeError(f"the undisturbed run {problem}")
            self._undisturbed[updates] = training
        return self._undisturbed[updates]
