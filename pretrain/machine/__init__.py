"""What the run asks of the machine: device, arithmetic, generators, signals and surroundings."""
