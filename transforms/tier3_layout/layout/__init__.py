"""What layouts are about: channels, costs, the cheapest choice, and operators moved from one layout to another."""
