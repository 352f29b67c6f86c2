"""The relay: processes that forward the frames of a cluster's impaired links between packet sockets."""
