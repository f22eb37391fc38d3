"""Pure decisions: state in, decision and new state out; no clock, no file, no tensor."""
