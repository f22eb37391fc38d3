"""One attempt of a run, from its config to its manifest."""

from pretrain.attempt.observing import Words
from pretrain.attempt.replayed import Replayed
from pretrain.attempt.rerun import replay_incident
from pretrain.attempt.result import AttemptResult
from pretrain.attempt.run import resume_attempt, start_attempt

__all__ = ["AttemptResult", "Replayed", "Words", "replay_incident", "resume_attempt", "start_attempt"]
