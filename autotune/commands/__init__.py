"""What people type: one module a command, and the app that loads them."""
