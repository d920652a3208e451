"""gradeloop's three programs as a Temporal expert writes them by hand: the yardstick of `make bench-all ARGS="--rows handwritten"`.

`loop` drafts, grades and revises. `batch` grades outputs in a file. `judgement` judges finished runs. All three use `model_call`, the first
two use `verdict`, and `worker` serves them.

They retry, heartbeat, hear cancellations and validate answers. They do not resume partial work beyond what Temporal gives, count tokens or
costs, keep to a provider's rate limit, cache verdicts, or fence what is judged: a draft stands between tags that its author could close.

A request has 0.8 of the bytes of gradeloop's for gradings and judgements, and 0.67 in the loop. The rest is gradeloop's trust boundary, its
longer rules for the answer and, in the loop, the conversation before the draft, which its grader sees too.
"""
