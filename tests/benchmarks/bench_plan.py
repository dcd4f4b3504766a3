"""Does `labkit plan` tell the time of a run beforehand? Plan and run in fresh processes, try by try, and compare.

Each try plans a run, makes it, and asks `labkit plan --check`. Budget: within 25% in 9 of 10 tries for runs of 20 s on
a quiet machine; a busy one changes its speed between plan and run, which no plan can know.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _table import Row, parser, report

TRIES, SECONDS = 2, 20.0
NEEDED = 0.9
SETTINGS = ("network=mlp", "eval_every=500", "save_every=500", "ema_decay=0.99")
ROOT = Path(__file__).resolve().parents[2]


def labkit(*words: str, folder: Path) -> Any:
    """The JSON of one verb in a fresh process. `plan --check` says with status 1 that a plan was wrong."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "labkit", *words, "--json"], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if done.returncode not in (0, 1) or not done.stdout:
        raise RuntimeError(f"labkit {' '.join(words)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def one(folder: Path, seconds: float) -> dict[str, float]:
    """One try: how many updates fill the time is asked of a first plan, then planned, run and compared."""
    rough = labkit("plan", "digits", "--updates", "1000", "--set", *SETTINGS, folder=folder)
    updates = str(max(100, int(1000 * seconds / rough["seconds"])))
    planned = labkit("plan", "digits", "--updates", updates, "--set", *SETTINGS, folder=folder)
    labkit("train", "digits", "--run", "run", "--updates", updates, "--set", *SETTINGS, folder=folder)
    checked = labkit("plan", "--check", "run", folder=folder)
    return {"planned_seconds": planned["seconds"], "real_seconds": checked["real_seconds"], "ratio": checked["ratio"]}


def main() -> int:
    words = parser(__doc__)
    words.add_argument("--tries", type=int, default=TRIES)
    words.add_argument("--seconds", type=float, default=SECONDS, help="length of each run")
    asked = words.parse_args()
    tries, rows = [], []
    for number in range(asked.tries):
        with tempfile.TemporaryDirectory(prefix="labkit-bench-") as folder:
            tries.append(one(Path(folder), asked.seconds))
        rows.append(Row(f"try {number + 1}: real / planned", tries[-1]["ratio"], "x"))
    within = sum(abs(entry["ratio"] - 1) <= 0.25 for entry in tries) / max(len(tries), 1)
    rows.append(Row("share within 25%", within, "", at_least=NEEDED if asked.tries >= 10 else 0.5))
    return report(rows, asked.json, {"tries": tries})


if __name__ == "__main__":
    sys.exit(main())
