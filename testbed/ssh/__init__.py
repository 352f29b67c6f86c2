"""Fabric connections: to the sshd of nodes, and to machines. Fabric and paramiko are imported here only."""
