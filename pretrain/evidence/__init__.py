"""What a run answers for: formats that are written once, sealed and checked."""
