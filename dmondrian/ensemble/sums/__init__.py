"""Sums over trees and rows that do not depend on the order in which they are made."""
