"""What runs beside compiled code: queues and the threads that fill them."""
