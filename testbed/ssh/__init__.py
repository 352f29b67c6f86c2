"""Connections by Fabric, to the sshd of nodes and to machines. Only this package imports Fabric and paramiko."""
