"""The native protocol: `/api/invocations`."""
