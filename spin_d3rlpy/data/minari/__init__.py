"""Minari's library of datasets: names, building, checking, importing, sharing, reading."""
