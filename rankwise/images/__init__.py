"""Reading, resizing and padding images: what data, models and export share."""
