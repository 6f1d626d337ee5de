"""Elements of tensors: computed, reduced, moved and selected."""
