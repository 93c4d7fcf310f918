"""Check versions and what works on this machine, and say how to fix what does not.

The exit code is 1 if anything is broken.

Example:
    mae-lm doctor --json
"""

import json
from dataclasses import dataclass

from mae_lm_fairseq.utils.command_line import Options as Base


@dataclass(frozen=True, kw_only=True)
class Options(Base):
    """Options of the command.

    Attributes:
        json: print the findings as JSON.
    """

    json: bool = False


def main(options: Options) -> int:
    """Run the command and return its exit code."""
    from mae_lm_fairseq.doctor import report, run_checks

    findings = run_checks()
    print(json.dumps([one._asdict() for one in findings], indent=2) if options.json else report(findings))
    return int(any(finding.state == "broken" for finding in findings))
