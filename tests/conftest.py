"""One torch thread for every test: results do not depend on the machine, and tiny models run fastest."""

import torch

torch.set_num_threads(1)
