"""The figures of B16 again, and what features cost beside scikit-learn's."""
