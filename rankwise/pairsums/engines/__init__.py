"""Engines compute ranking losses and their gradients behind one interface, `rankwise.pairsums.Engine`."""
