

inputPlaceholder