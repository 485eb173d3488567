"""Compare runs: from their files to what can be said. Imports neither torch nor Ray and starts at once.

Start at ``experiment`` (runs in arms) and ``run_frame`` (the numbers of a run by name). ``judging`` says what is
different, ``stats`` how that is tested, ``remarks`` what is said, ``gates`` which exit code follows: with
``completeness`` (is everything there), ``environment`` (is it alike) and ``occasions`` (a baseline of other days).
"""

from harness.compare.experiment import Experiment, Member, gather
from harness.compare.judging import Judgement, judgements
from harness.compare.remarks import Remark, remarks_of

__all__ = ["Experiment", "Judgement", "Member", "Remark", "gather", "judgements", "remarks_of"]
