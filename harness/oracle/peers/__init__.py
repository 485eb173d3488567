"""What other trainers ship, called in their own environments. It imports nothing of this project but itself."""
