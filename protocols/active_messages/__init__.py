"""The interface that protocols of active messages share, independent of their endpoints' implementation."""
