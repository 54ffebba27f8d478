"""What the loss of a memory costs, beside PML's class: a table each, with one harness and one schema."""
