"""Records of a cluster: state, owner, paths and status."""
