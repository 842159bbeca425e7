"""What every part uses: resources, progress, JSON files, storage."""
