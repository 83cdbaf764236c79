"""The `muster` command: finds the program's parts and hands over to the one that was asked for.

In a checkout the parts lie beside this package, installed they lie in its private folder `_app`; either goes first on
the path, because other projects own the names `common`, `master`, `agent` and `webserver`. Only this command does so:
`import muster.client` leaves the path alone. A shepherd is started without loading anything but its own module.
"""

from __future__ import annotations

import os
import sys


def main() -> int:
    """Run the command line of this process; answers its exit code."""
    package = os.path.dirname(os.path.abspath(__file__))
    installed = os.path.join(package, "_app")
    sys.path.insert(0, installed if os.path.isdir(installed) else os.path.dirname(package))
    if sys.argv[1:2] == ["shepherd"]:
        from agent.shepherd import main as shepherd

        return shepherd(sys.argv[2:])
    from muster.cli.main import main as command

    command(prog_name="muster")
    return 0


if __name__ == "__main__":
    sys.exit(main())
