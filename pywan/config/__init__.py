"""The attributes of what a member creates, their forms in files, and a site's cluster configuration."""
