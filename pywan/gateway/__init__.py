"""Gateway senders and receivers of a member, and the floors that they tell each other."""
