"""What every part shares: records, errors, wire, transport, keys, time. Imports nothing of ours."""
