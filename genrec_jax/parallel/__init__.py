"""How arrays and work spread over devices, hosts and processes."""
