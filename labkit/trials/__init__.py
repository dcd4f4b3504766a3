"""Is one setting better than another? Runs over seeds at equal budget, compared in pairs, with an interval. Lesson 08.

Both runs of a seed share initial weights and data order, so their difference is far less noisy than either of them.
The verdict is "better", "worse" or "cannot tell": one pair, or an interval that holds zero, decides nothing.
"""

from labkit.trials.compare import Trial, Trials, trials
from labkit.trials.verdict import Verdict, paired, t_95

__all__ = ["Trial", "Trials", "Verdict", "paired", "t_95", "trials"]
