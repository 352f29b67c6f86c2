"""The relay: a process that carries a cluster's impaired links between packet sockets."""
