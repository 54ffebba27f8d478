"""What a step costs on a device, beside PML's class and beside the two matrix products alone."""
