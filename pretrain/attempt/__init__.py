"""One attempt of a run, from its config to its manifest."""

from pretrain.attempt.begin import resume_attempt, start_attempt
from pretrain.attempt.observing import Words
from pretrain.attempt.replayed import Replayed
from pretrain.attempt.rerun import replay_incident
from pretrain.attempt.result import AttemptResult
from pretrain.attempt.starting_point import check_start

__all__ = ["AttemptResult", "Replayed", "Words", "check_start", "replay_incident", "resume_attempt", "start_attempt"]
