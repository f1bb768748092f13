"""What a new operator asks first: is the cluster as the sidecar needs it, and what is off."""
