"""The fault drill: every kind of fault made at many points, and what a run must have lost at each of them: nothing."""
