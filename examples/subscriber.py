"""Print the loss of a training from its beginning. Start it at any time.

python examples/subscriber.py tcp://127.0.0.1:5556
"""

import sys

from glovewire.common.protocol.messages import LossSample
from glovewire.monitor.stream.feed import Feed

with Feed(sys.argv[1:] or "tcp://127.0.0.1:5556", topics=["loss"], timeout_s=60, silence_s=60) as feed:
    for received in feed:
        sample = received.message
        if isinstance(sample, LossSample) and sample.worker == "all":
            print(f"{sample.t:8.1f} s  {sample.entries:>12,} entries  loss {sample.mean_loss:.4f}")
