"""A site: the locators, and the connections of members to locators and coordinator."""
