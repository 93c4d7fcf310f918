"""Program of a subject's process: builds a model, then runs training steps on request.

Its argument is the number of a file descriptor. It receives a dictionary over it (see ``main``), and then requests:
tuples of a method name, the file of a batch and a number of steps. It answers ``("done", value)``, or ``("failed",
reason)`` and exits. It is not imported as part of the package, see ``__init__.py``.
"""

import importlib
import sys
from multiprocessing.connection import Connection

import torch


def main(connection: Connection) -> None:
    """Serve requests until the other side closes the connection."""
    try:
        spec = connection.recv()
        torch.set_num_threads(spec["threads"])
        torch.manual_seed(1)
        subject = importlib.import_module(spec["kind"]).build(spec)
        connection.send(("done", None))
        while True:
            word, *arguments = connection.recv()
            connection.send(("done", getattr(subject, word)(*arguments)))
    except EOFError:
        pass
    except (Exception, SystemExit) as problem:  # fairseq's programs call sys.exit
        lines = str(problem).strip().splitlines() or ["no reason given"]
        connection.send(("failed", f"{type(problem).__name__}: {lines[0]}"))


if __name__ == "__main__":
    main(Connection(int(sys.argv[1])))
