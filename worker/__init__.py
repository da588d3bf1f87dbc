"""Train as one worker: lease blocks, pull rows, compute, push changes, report losses."""
