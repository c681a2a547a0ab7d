"""Tasks that pre-train the ASM: masked (MAM, SPIN's own), variational (VAM), contrastive (CAM)."""
