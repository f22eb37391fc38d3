"""What every test begins with, wherever it is started from: one torch thread, and a SIGINT that is listened to."""

import signal

import torch

# Results do not depend on the machine, and tiny models run fastest.
torch.set_num_threads(1)

# A script that starts the tests in the background has them and their processes ignore SIGINT, and some send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
