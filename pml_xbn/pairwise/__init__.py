"""Losses, miners and reducers of PML's between anchors and stored rows."""
