"""What the loop and the loader cost, measured on the machine at hand; nothing here fails on a figure."""
