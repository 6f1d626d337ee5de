"""From a layer to a stream of instructions: operators, tilings, transfers, lowering."""
